"""How events and results look, for people and for machines. Nothing else imports rich."""
