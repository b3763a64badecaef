"""What a person can do about a stuck claim in the admin. The rules are in ``resolving``; this asks and tells."""
