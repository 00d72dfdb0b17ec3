"""A nemotron_h decode, its experts computed by any of the bundled variants, by transformers' loop or glqprof's.

``sizes`` says how large, ``model`` makes seeded random weights on the device, ``experts`` computes the experts,
``patch`` and ``ssm_patch`` swap computations in any nemotron_h model. ``paths`` says how tokens are run, ``runs`` makes
what runs them: a step of ``steps`` (transformers' forward) or of ``loop`` (the bundled kernels), over ``static_cache``,
eagerly or in a ``graph``. ``decode`` times it, ``generate`` is for models of a user's own. Nothing here imports torch
or transformers before something runs.
"""
