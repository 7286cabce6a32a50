"""What only the pages of the book need: pictures, dials, exercises."""
