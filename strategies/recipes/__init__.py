"""One recipe a file: a function ``recipe(**settings) -> Method``. A new file here is a new method.

By what is sent, each named by its file:

    dense gradients      dpsgd, sgd, topk, sparse_dpsgd, rs, dp_ssgd
    a part of the model  bitfit, linear_probe, dp_tl
    carriers of W        lsg, rgp, rgp_random, dp_powersgd, powersgd
    probe carriers       probe, lsg_probe, rgp_probe, dp_kfc, gep
    factors next to W    lora, ffa_lora, fed_sb, fed_svd, lsg_lora
"""
