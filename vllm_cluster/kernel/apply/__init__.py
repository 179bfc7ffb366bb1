"""Carries out a plan: containers, members, and what is waited for."""
