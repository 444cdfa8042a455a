"""What we measure ourselves by: the fabric against a straightforward baseline, interleaved in one run."""
