"""Looking at generations: traces, divergence, profiles, measurements."""
