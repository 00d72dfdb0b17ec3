"""A nemotron_h decode through transformers' own model, with its experts computed by any of the bundled variants.

``sizes`` says how large, ``model`` makes seeded random weights on the device, ``experts`` computes the experts,
``patch`` swaps that computation in any nemotron_h model, ``decode`` runs the greedy loop. torch and transformers are
imported by the last four, so nothing here imports them before something runs.
"""
