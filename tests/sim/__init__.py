"""A world of hosts in memory, in which the whole product runs unchanged while every call can go wrong."""
