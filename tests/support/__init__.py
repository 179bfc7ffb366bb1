"""What tests of several folders share: hosts, servers, worlds in memory, recorded facts. No test is in here."""
