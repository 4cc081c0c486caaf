"""What a row predicts: masked tokens, the next token, or the repair of a wrong token."""
