"""Waiting that ends, room that fills, turns, and closing; streams borrow these too."""
