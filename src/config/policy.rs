//! The policy: the model, its type and device, or the server that has it.

use r1_base::{DeviceChoice, Dtype};

use crate::schema::{Time, choices, section};

section! {
    /// The model, its type and device.
    pub struct PolicySettings: "policy.", restart() {
        /// The model: a directory in Hugging Face layout, a GGUF file, a Hub id (ORG/NAME,
        /// ORG/NAME@REVISION, or ORG/NAME:FILE for a GGUF file), r1-nano, or smollm2-135m.
        model: String = "r1-nano".to_owned();
        /// Base model of an adapter (policy.model, or a resumed run's checkpoint); if empty, the
        /// one in adapter_config.json.
        base: String = String::new();
        /// Type of the weights in memory; auto is f32 on the CPU and bf16 on CUDA.
        dtype: Dtype = Dtype::Auto;
        /// Device of the model; auto is CUDA if available.
        device: DeviceChoice = DeviceChoice::Auto;
        /// URL of a server that has the model, for r1 eval and r1 infer (docs/guide/evaluation.md);
        /// policy.model is then its name there. The key is in the environment: OPENAI_API_KEY or
        /// ANTHROPIC_API_KEY.
        api_base: String = String::new();
        /// API of the server: chat completions or Anthropic's messages; auto is messages for
        /// api.anthropic.com.
        api: ServerApi = ServerApi::Auto, needs("policy.api_base", Is::Set);
        /// Longest wait for the next piece of a server's reply, and for all of a reply that is not
        /// streamed. Comments and other events that keep the connection open are not pieces.
        api_timeout: f64 as Time = 600.0, unit("seconds"), range("> 0"), needs("policy.api_base", Is::Set);
        /// Attempts of a request to a server that is busy, fails or breaks off.
        api_attempts: usize = 6, range("≥ 1"), needs("policy.api_base", Is::Set);
        /// Price of a server's tokens, for the figure `cost` of r1 eval.
        #[serde(skip_serializing_if = "Option::is_none")]
        price: Option<Price> = None;
        /// The tokenizer that counts the tokens of context policies and of policy.max_context for
        /// a server: a model directory or a Hub id; r1-nano's if empty.
        tokenizer: String = String::new(), needs("policy.api_base", Is::Set);
        /// Longest prompt plus response; 0 is the model's limit.
        max_context: usize = 0, unit("tokens"), range("≥ 0");
        /// Records decode steps as CUDA graphs: one launch per step, at the cost of some memory.
        /// CUDA only.
        cuda_graphs: bool = true;
        /// Samples with the adapter merged into a copy of the weights it applies to; auto is on for
        /// CUDA and off for the CPU. Training computes the adapter apart, in f32.
        merged_sampling: Switch = Switch::Auto;
        /// Variables of the chat template, such as enable_thinking (chat_template_kwargs in
        /// transformers).
        template_kwargs: serde_json::Map<String, serde_json::Value> = serde_json::Map::new();
        /// Initialises a new Qwen2 model and trains a tokenizer on the recipe's text instead of
        /// loading them (r1 sft).
        #[serde(skip_serializing_if = "Option::is_none")]
        init: Option<InitModel> = None;
        /// Trains a low-rank adapter (LoRA, arXiv:2106.09685); the base weights are frozen.
        #[serde(skip_serializing_if = "Option::is_none")]
        lora: Option<LoraSettings> = None;
    }
}

choices! {
    /// The API of a server.
    pub enum ServerApi {
        Auto = "auto",
        OpenAi = "openai",
        Anthropic = "anthropic",
    }
}

section! {
    /// Price of a server's tokens, in any currency per million tokens.
    pub struct Price: "policy.price.", restart() {
        /// Prompt tokens.
        input: f64 = 0.0, unit("per million tokens"), range("≥ 0");
        /// Response tokens, including reasoning.
        output: f64 = 0.0, unit("per million tokens"), range("≥ 0");
    }
}

section! {
    /// A Qwen2 model with fresh weights and a tokenizer trained on the recipe's own text.
    pub struct InitModel: "policy.init.", restart() {
        /// Width of the hidden states.
        hidden_size: usize = 192, range("≥ 1");
        /// Width of the MLP.
        intermediate_size: usize = 512, range("≥ 1");
        /// Number of layers.
        num_hidden_layers: usize = 4, range("≥ 1");
        /// Query heads per layer.
        num_attention_heads: usize = 4, range("≥ 1");
        /// Key-value heads per layer; divides the number of query heads.
        num_key_value_heads: usize = 2, range("≥ 1");
        /// Longest prompt plus response.
        max_position_embeddings: usize = 1024, unit("tokens"), range("≥ 1");
        /// Base of the rotary embedding.
        rope_theta: f64 = 10_000.0, range("> 0");
        /// Size of the byte-level BPE vocabulary, special tokens included.
        vocab_size: usize = 512, unit("tokens"), range("≥ 256 + special tokens");
        /// Special tokens in addition to ChatML's, one id each.
        special_tokens: Vec<String> = Vec::new();
        /// Rows of data.train that the tokenizer is trained on.
        tokenizer_rows: usize = 4000, unit("rows"), range("≥ 1");
        /// A vision tower: the model is then a Qwen3-VL, which reads images.
        #[serde(skip_serializing_if = "Option::is_none")]
        vision: Option<VisionInit> = None;
    }
}

section! {
    /// A new vision tower of Qwen3-VL (arXiv:2511.21631), without deep features.
    pub struct VisionInit: "policy.init.vision.", restart() {
        /// Width of the hidden states of patches; each head has a multiple of 4.
        hidden_size: usize = 64, range("≥ 1");
        /// Width of the MLP.
        intermediate_size: usize = 160, range("≥ 1");
        /// Number of layers.
        depth: usize = 2, range("≥ 1");
        /// Heads per layer.
        num_heads: usize = 4, range("≥ 1");
        /// Side of a patch. Two by two patches become one token.
        patch_size: usize = 8, unit("pixels"), range("≥ 1");
        /// Smaller images are enlarged to about this size.
        min_pixels: usize = 1024, unit("pixels"), range("≥ 1");
        /// Larger images are reduced to about this size.
        max_pixels: usize = 65_536, unit("pixels"), range("≥ 1");
    }
}

/// All matrices of attention and MLP.
pub const LORA_TARGETS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

section! {
    /// A new low-rank adapter (LoRA, arXiv:2106.09685), saved in PEFT's format. Training of an
    /// existing adapter (`policy.model` is its directory) does not need this.
    pub struct LoraSettings: "policy.lora.", restart() {
        /// Rank of the adapter.
        rank: usize = 16, range("≥ 1");
        /// The adapter is scaled by alpha / rank, or by alpha / sqrt(rank) if rank_stabilized.
        alpha: f64 = 32.0, range("> 0");
        /// Scales by the square root of the rank (rsLoRA, arXiv:2312.03732).
        rank_stabilized: bool = false;
        /// Projections with an adapter, by the end of their names; `visual.*`: those of the tower.
        targets: Vec<String> = LORA_TARGETS.map(str::to_owned).to_vec();
    }
}

choices! {
    pub enum Switch {
        Auto = "auto",
        On = "on",
        Off = "off",
    }
}

impl Switch {
    /// The choice, or `default_value` for auto.
    pub fn unless_auto(self, default_value: bool) -> bool {
        match self {
            Self::Auto => default_value,
            Self::On => true,
            Self::Off => false,
        }
    }
}
