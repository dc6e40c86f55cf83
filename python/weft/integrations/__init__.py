"""Callbacks for trainers: `weft.integrations.transformers` and `weft.integrations.lightning`.

Neither package is a dependency of weft: each module needs its own.
"""
