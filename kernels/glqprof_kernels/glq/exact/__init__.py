"""Exact CPU implementations of the arithmetic contract, one a variant, each with that variant's own schedule.

They share data (``host``) and scalar rounding (``rounding``) but no arithmetic: one code under several names could not
show that two schedules have the same bits.
"""
