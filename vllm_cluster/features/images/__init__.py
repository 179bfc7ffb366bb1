"""The images of hosts: `image ls`, `prune`, `push`."""
