"""What is done for one client or one record, and by hand."""
