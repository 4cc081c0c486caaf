"""Read files that others may have written: sizes are limited, types are checked, each error is one short line."""
