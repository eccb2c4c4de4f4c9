//! Pure tensor maths: advantages, losses, masks, packing, schedules, the optimiser. No text, no scripts, no I/O.
