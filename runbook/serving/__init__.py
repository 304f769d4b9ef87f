"""What is known of inference servers: their flags, their health, their last words."""
