"""How bytes and commands reach a host: one Protocol, several carriers."""
