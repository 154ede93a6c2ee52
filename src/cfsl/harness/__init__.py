"""The harness: one task (or many) through one learner, under the data-flow law."""
