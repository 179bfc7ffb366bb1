"""The logs of all hosts, merged by time: `logs`."""
