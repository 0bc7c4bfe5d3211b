"""Attacks by volume on a real bookie, and what they cost it and an honest writer.

``watched`` runs the bookie and its stopwatch, ``honest`` the writer beside it, ``attacks`` has the
attacks, ``measure`` runs one of them, ``run`` all, and writes the page.
"""
