"""One forward and backward pass with hooks: the gradients of each example, layer by layer.

Before a pass, what the model is:

    parameters          those that are trained, by name
    supported           refuses models without per-example gradients
    hooked_layers       which layers get hooks, which blocks of the frame each one computes, and the
                        nodes of autograd's graph that get hooks
    call_layers         layers whose gradients are a function of one call
    model_facts         what is found out about a model once, for as long as it stays as it is
    precision           the precision of a pass

The pass:

    hooks               forward hooks call ``remember``, backward hooks ``form_block``
    blocks              forward: what a layer keeps of its input and output; backward: the layer's
                        blocks, from that and from the gradient at its output
    activation_storage  activations that wait for backward, in half the memory
    rematerialization   inputs of layers that backward recomputes, in place of keeping them

Parameters that no layer's formula covers:

    uses                parameters without a layer, and shared ones: copied for each example where
                        they meet the batch
    unbatched           the values that all examples share until then
    sources             where such values enter a layer, and where their gradients go

No file here imports from ``gradients`` itself.
"""
