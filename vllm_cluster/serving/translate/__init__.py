"""Reads how a model is served elsewhere, as command lines, scripts, compose files, into what serves it here."""
