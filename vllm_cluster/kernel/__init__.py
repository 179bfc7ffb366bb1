"""What every layer above uses: hosts, what is on them, what is planned for them, who may change them."""
