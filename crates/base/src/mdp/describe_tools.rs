//! Whether the host describes the tools to the policy.

use crate::schema::choices;

choices! {
    /// Tools in the system prompt, described by the host.
    #[derive(Default)]
    pub enum DescribeTools {
        /// If the format leaves them to the chat template, and it prints none.
        #[default]
        Auto = "auto",
        /// Also for formats whose prompts show no tools (retool, tir, answer).
        Always = "always",
        /// Never: the script tells the policy how it calls them.
        Never = "never",
    }
}
