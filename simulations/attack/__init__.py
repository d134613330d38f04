"""``fedlsg attack``: what an adversary gets from recorded payloads, or from a trained model.

observations  what a run recorded      target  which updates, and the attempts on each      recording  runs for attacks
images, texts  attacks of either kind (``_score``: compared with the truth)      findings, report  tables, verdict, page
membership/  who was trained on
"""
