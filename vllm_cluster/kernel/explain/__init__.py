"""Why it failed: logs of any launcher read line by line, and the first cause reported. Pure: nothing is opened here."""
