"""The link between one node and one edge, as pure values and state machines. No IO in here.

messages     what travels, as frozen values (the codec turns them into frames)
auth         tokens, stored keys, proofs
machine      what both sides share: states, liveness deadlines, closing
edge_side    what only the accepting side does
node_side    what only the dialling side does
"""
