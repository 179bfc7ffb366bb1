"""Runs on every host during a pull, in one container a host: brings the files of a model to its cache."""
