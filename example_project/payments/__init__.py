"""Accounts, charges and refunds over a double-entry ledger."""
