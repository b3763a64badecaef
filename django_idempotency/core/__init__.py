"""The rules, in plain Python: no framework, no database, no clock of their own."""
