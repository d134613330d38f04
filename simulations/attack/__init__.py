"""``fedlsg attack``: what an adversary gets from recorded payloads, or from a trained model.

recorded/  what a run recorded        images/, texts/  attacks on either kind        membership/  who was trained on
"""
