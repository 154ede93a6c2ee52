"""The sandboxed level of the data-flow law: every call of a learner in a locked process of its own.

    cfsl  --- learner, weights -->  fork server                                    once
    cfsl  --- two pipes ---------->  fork server  --- fork ----->  child           for every call
    cfsl  --- state, images -------------------------------------->  child
    cfsl  <-- new state, or logits --------------------------------  child
    cfsl  --- "end it" ----------->  fork server  --- kill, wait ->  child

The *fork server* (`fork_server.py`) has imported torch and holds the weights. It runs no line of
the learner's and sees no image. A *child* (`child.py`) locks itself (`lock.py`), only then makes
the learner, answers one call, and is killed. It opens no file, not even to import the learner: the
fork server has read the sources beforehand (`sources.py`).

What a child sends is a canonical byte string (`wire.py`). cfsl checks it, counts it (`counting.py`)
and hands it to the next child as it is: it unpickles, imports and calls nothing of the learner's.
"""
