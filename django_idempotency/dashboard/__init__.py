"""A page of the admin that shows the store at work: what is stuck, what became of requests, what will be dropped."""
