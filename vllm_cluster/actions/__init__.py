"""What each verb does, in phases that read as a table of contents."""
