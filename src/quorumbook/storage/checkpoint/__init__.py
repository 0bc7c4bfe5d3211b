"""From the journal to where entries stay: what is visible, what is durable, and when."""
