"""The online audit: bets against an honest draft and an exact verifier that grow only if one of them is neither."""
