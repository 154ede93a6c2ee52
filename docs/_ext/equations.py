"""What each learner computes, in one glance. Letters are those of the learner's own file.

A test holds that every registered learner is here.
"""

_MEANS = """c_k        = mean of f(x) over all support images x of label k, of all support sets
logit_k(x) = scale * closeness(f(x), c_k)
closeness  = -|a - b|^2, the cosine, or the dot product"""

_TUNE = """theta <- theta - lr * grad CE(f(theta; images), labels)
`steps` times on each support set; theta is carried on to the next"""

_EWC = """theta <- theta - lr * grad [ CE(f(theta; images), labels)
                             + strength / 2 * sum_i F_i (theta_i - anchor_i)^2 ]
F_i   = sum over earlier sets of the mean over images of (d log p(label | image) / d theta_i)^2"""

_INNER = """theta_{i+1} = theta_i - rate_i * grad CE(f(theta_i, scale_i; images), labels)
answer      = f(theta_n, scale_n; targets)
theta_0, rates and scales are learned by the outer loss"""

EQUATIONS = {
    "chance": "logit_k(x) = 0",
    "pixel_nn": "logit_k(x) = max over stored images s of label k of -|x - s|^2",
    "random_embedding": f"{_MEANS}\nf is a network at its first weights",
    "protonet": _MEANS,
    "multiproto": """p_{g,k}    = mean of f(x) over the support images x of label k in class group g
logit_k(x) = log sum_g exp(scale * closeness(f(x), p_{g,k}))""",
    "protonet_replay": """k(a, b)   = exp(-w s |a - b|^2)
answer(x) = k(x, M) (k(M, M) + r / n)^-1 Y / max_m k(x, m)
logits(x) = (1 - share) * ProtoNets(x) + share * gain * answer(x)""",
    "joint": f"{_MEANS}\nall support sets at once, at the end",
    "init_tune": f"{_TUNE}\ntheta starts at random",
    "pretrain_tune": f"{_TUNE}\ntheta starts at pretrained weights, with a head that is drawn anew",
    "ewc_init": _EWC,
    "ewc_pretrain": _EWC,
    "pretrain_tune_replay": """theta <- theta - lr * grad CE(f(theta; images), labels)
images   = those of the support set, and replayed ones
replayed = `samples` images, drawn anew at every step from the last `sets` support sets""",
    "maml_low": f"{_INNER}\ntheta: every convolution, and the head",
    "maml_high": f"{_INNER}\ntheta: a small net on top of a deep embedding that stays",
    "sca": f"""{_INNER}
theta'      = theta_n - rate_n * grad sum over targets of critic([z, |z|, z^2, sign z])
z           = f(theta_n; target)
answer      = f(theta'; targets), in place of the one above""",
    "anil": f"{_INNER}\ntheta: the head alone",
    "proto_maml": f"""w_k = 2 c_k,  b_k = -|c_k|^2
the head of a set's classes k starts at their prototypes c_k; then
{_INNER}""",
    "champion": """f(x)       = (f(v_1 x), ..., f(v_8 x)), each of length 1
             v_1 x, ..., v_8 x: x, turned and mirrored in eight ways
z(x)       = f(x) on the 512 axes that tell most of classes
             on each axis, images have variance 1, of which r is between classes
m_{g,k}    = mean of z(x) over the n support images x of label k in class group g
e_{g,k}(x) = t sum over the axes of (z^2 - (z - s m)^2 / v - log v) / 2
             s = n r / (1 + (n - 1) r),  v = 1 - s r
t          = 4 / max(4, -sum over the axes of log(1 - r^2) / 2)
             where max e < -2, all e are raised until it is -2
logit_k(x) = log [sum_g exp(e_{g,k}(x)) + exp(2) / n_k^3 sum_i odds_i]
odds_i     = the odds that x is a copy of image i of the n_k images of label k

on photographs:
e_{g,k}(x) = scale * cos(f(x), p_{g,k}) / sqrt(|p_{g,k}|),  p the mean of f
             exp(.35 scale) sum_i exp(e_i(x)) odds_i in the place of exp(2) / n_k^3 sum_i odds_i
e_i        = e_{g,k} of the prototype that image i is part of""",
}
