//! Every integration test, in one binary so that libtorch is linked once.
