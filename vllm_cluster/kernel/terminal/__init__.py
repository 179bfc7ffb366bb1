"""What every verb needs: words, options, a session, and the one place for output. Only here is rich."""
