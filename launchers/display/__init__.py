"""One way to show each thing: tables, progress, marked text, JSON, errors of the command line."""
