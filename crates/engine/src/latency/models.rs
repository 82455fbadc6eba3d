use super::{
    LatentAttentionShape, ModelQuantization, ModelShape, MoeShape, QuantizationScheme,
    RecurrentStateLayers, SlidingWindowLayers,
};

struct KnownModel {
    /// Model name in lower case, which matches a repository if the last part of the repository's
    /// name contains the words of this name.
    name: &'static str,
    shape: ModelShape,
}

const fn dense_model(
    name: &'static str,
    (hidden, layers): (u32, u32),
    (heads, kv_heads, head_dim): (u32, u32, u32),
    (intermediate, vocab): (u32, u32),
    max_context: u32,
) -> KnownModel {
    KnownModel {
        name,
        shape: ModelShape {
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate,
            vocab,
            tied: false,
            gated: true,
            mla: None,
            moe: None,
            window: None,
            state: None,
            qk_norm: false,
            quantization: ModelQuantization::for_all_weights(QuantizationScheme::None),
            max_context,
        },
    }
}

const fn with_tied_embeddings(mut known: KnownModel) -> KnownModel {
    known.shape.tied = true;
    known
}

const fn with_ungated_mlp(mut known: KnownModel) -> KnownModel {
    known.shape.gated = false;
    known
}

const fn with_sliding_window(mut known: KnownModel, tokens: u32, layers: u32) -> KnownModel {
    known.shape.window = Some(SlidingWindowLayers { tokens, layers });
    known
}

const fn with_state_layers(mut known: KnownModel, state: RecurrentStateLayers) -> KnownModel {
    known.shape.state = Some(state);
    known
}

/// State layers of Qwen3-Next (gated delta net): 16 key and 32 value heads of 128.
///
/// **Source:** `config.json` of Qwen3-Next-80B-A3B-Instruct.
const QWEN3_NEXT_STATE_LAYERS: RecurrentStateLayers = RecurrentStateLayers {
    layers: 36,
    channels: 8192,
    groups: (0, 0),
    kernel: 4,
    numbers: 32 * 128 * 128,
    number_bytes: 2,
    checkpoints: false,
};

/// State layers of Nemotron-H (Mamba-2): 128 heads of 64, states of 128.
///
/// **Source:** the defaults of transformers' `configuration_nemotron_h.py`, not the `config.json`
/// of the 8B model.
const NEMOTRON_H_STATE_LAYERS: RecurrentStateLayers = RecurrentStateLayers {
    layers: 24,
    channels: 128 * 64,
    groups: (8, 2 * 128),
    kernel: 4,
    numbers: 128 * 64 * 128,
    number_bytes: 4,
    checkpoints: true,
};

const fn with_quantization(mut known: KnownModel, quantization: ModelQuantization) -> KnownModel {
    known.shape.quantization = quantization;
    known
}

/// Adds a mixture of experts to a known model. The arguments are (number of experts, experts per
/// token), (width of an expert, width of the shared expert), and number of layers with experts.
const fn with_experts(
    mut known: KnownModel,
    (experts, per_token): (u32, u32),
    (intermediate, shared): (u32, u32),
    layers: u32,
) -> KnownModel {
    known.shape.moe =
        Some(MoeShape { experts, per_token, intermediate, shared, layers, fp32_router: false });
    known
}

const fn with_latent_attention(mut known: KnownModel, q_rank: u32) -> KnownModel {
    known.shape.mla = Some(LatentAttentionShape {
        q_rank,
        kv_rank: 512,
        rope_dim: 64,
        nope_dim: 128,
        v_dim: 128,
    });
    known
}

/// Built-in models, with layer sizes from the `config.json` of each repository.
#[rustfmt::skip]
static KNOWN_MODELS: &[KnownModel] = &[
    // Llama
    dense_model("llama-7b", (4096, 32), (32, 32, 128), (11008, 32000), 2048),
    dense_model("llama-13b", (5120, 40), (40, 40, 128), (13824, 32000), 2048),
    dense_model("llama-2-7b", (4096, 32), (32, 32, 128), (11008, 32000), 4096),
    dense_model("llama-2-13b", (5120, 40), (40, 40, 128), (13824, 32000), 4096),
    dense_model("llama-2-70b", (8192, 80), (64, 8, 128), (28672, 32000), 4096),
    dense_model("llama-3-8b", (4096, 32), (32, 8, 128), (14336, 128256), 8192),
    dense_model("llama-3-70b", (8192, 80), (64, 8, 128), (28672, 128256), 8192),
    dense_model("llama-3.1-8b", (4096, 32), (32, 8, 128), (14336, 128256), 131072),
    dense_model("llama-3.1-70b", (8192, 80), (64, 8, 128), (28672, 128256), 131072),
    dense_model("llama-3.1-405b", (16384, 126), (128, 8, 128), (53248, 128256), 131072),
    with_tied_embeddings(dense_model("llama-3.2-1b", (2048, 16), (32, 8, 64), (8192, 128256), 131072)),
    with_tied_embeddings(dense_model("llama-3.2-3b", (3072, 28), (24, 8, 128), (8192, 128256), 131072)),
    dense_model("llama-3.2-11b", (4096, 40), (32, 8, 128), (14336, 128256), 131072),
    dense_model("llama-3.2-90b", (8192, 100), (64, 8, 128), (28672, 128256), 131072),
    dense_model("llama-3.3-70b", (8192, 80), (64, 8, 128), (28672, 128256), 131072),
    with_sliding_window(with_experts(dense_model("llama-4-scout-17b-16e", (5120, 48), (40, 8, 128), (16384, 202048), 10485760),
        (16, 1), (8192, 8192), 48), 8192, 36),
    with_sliding_window(with_experts(dense_model("llama-4-maverick-17b-128e", (5120, 48), (40, 8, 128), (16384, 202048), 1048576),
        (128, 1), (8192, 8192), 24), 8192, 36),
    dense_model("tinyllama-1.1b", (2048, 22), (32, 4, 64), (5632, 32000), 2048),
    dense_model("codellama-7b", (4096, 32), (32, 32, 128), (11008, 32016), 16384),
    dense_model("codellama-13b", (5120, 40), (40, 40, 128), (13824, 32016), 16384),
    dense_model("codellama-34b", (8192, 48), (64, 8, 128), (22016, 32000), 16384),
    dense_model("codellama-70b", (8192, 80), (64, 8, 128), (28672, 32016), 4096),
    dense_model("deepseek-r1-distill-llama-8b", (4096, 32), (32, 8, 128), (14336, 128256), 131072),
    dense_model("deepseek-r1-distill-llama-70b", (8192, 80), (64, 8, 128), (28672, 128256), 131072),
    // Mistral
    with_sliding_window(dense_model("mistral-7b-v0.1", (4096, 32), (32, 8, 128), (14336, 32000), 32768), 4096, 32),
    with_sliding_window(dense_model("mistral-7b-instruct-v0.1", (4096, 32), (32, 8, 128), (14336, 32000), 32768), 4096, 32),
    dense_model("mistral-7b-instruct-v0.2", (4096, 32), (32, 8, 128), (14336, 32000), 32768),
    dense_model("mistral-7b", (4096, 32), (32, 8, 128), (14336, 32768), 32768),
    dense_model("mistral-nemo", (5120, 40), (32, 8, 128), (14336, 131072), 131072),
    dense_model("ministral-8b", (4096, 36), (32, 8, 128), (12288, 131072), 32768),
    dense_model("mistral-small-24b", (5120, 40), (32, 8, 128), (32768, 131072), 32768),
    dense_model("mistral-small", (5120, 40), (32, 8, 128), (32768, 131072), 131072),
    dense_model("mistral-large", (12288, 88), (96, 8, 128), (28672, 32768), 131072),
    with_experts(dense_model("mixtral-8x7b", (4096, 32), (32, 8, 128), (14336, 32000), 32768), (8, 2), (14336, 0), 32),
    with_experts(dense_model("mixtral-8x22b", (6144, 56), (48, 8, 128), (16384, 32768), 65536), (8, 2), (16384, 0), 56),
    // Qwen
    with_tied_embeddings(dense_model("qwen2-0.5b", (896, 24), (14, 2, 64), (4864, 151936), 131072)),
    with_tied_embeddings(dense_model("qwen2-1.5b", (1536, 28), (12, 2, 128), (8960, 151936), 131072)),
    dense_model("qwen2-7b", (3584, 28), (28, 4, 128), (18944, 152064), 131072),
    dense_model("qwen2-72b", (8192, 80), (64, 8, 128), (29568, 152064), 131072),
    with_experts(dense_model("qwen2-57b-a14b", (3584, 28), (28, 4, 128), (18944, 151936), 131072), (64, 8), (2560, 20480), 28),
    with_tied_embeddings(dense_model("qwen2.5-0.5b", (896, 24), (14, 2, 64), (4864, 151936), 32768)),
    with_tied_embeddings(dense_model("qwen2.5-1.5b", (1536, 28), (12, 2, 128), (8960, 151936), 131072)),
    with_tied_embeddings(dense_model("qwen2.5-3b", (2048, 36), (16, 2, 128), (11008, 151936), 32768)),
    dense_model("qwen2.5-7b", (3584, 28), (28, 4, 128), (18944, 152064), 131072),
    dense_model("qwen2.5-14b", (5120, 48), (40, 8, 128), (13824, 152064), 131072),
    dense_model("qwen2.5-32b", (5120, 64), (40, 8, 128), (27648, 152064), 131072),
    dense_model("qwen2.5-72b", (8192, 80), (64, 8, 128), (29568, 152064), 131072),
    with_tied_embeddings(dense_model("qwen2.5-coder-0.5b", (896, 24), (14, 2, 64), (4864, 151936), 32768)),
    with_tied_embeddings(dense_model("qwen2.5-coder-1.5b", (1536, 28), (12, 2, 128), (8960, 151936), 32768)),
    with_tied_embeddings(dense_model("qwen2.5-coder-3b", (2048, 36), (16, 2, 128), (11008, 151936), 32768)),
    dense_model("qwen2.5-coder-7b", (3584, 28), (28, 4, 128), (18944, 152064), 32768),
    dense_model("qwen2.5-coder-14b", (5120, 48), (40, 8, 128), (13824, 152064), 32768),
    dense_model("qwen2.5-coder-32b", (5120, 64), (40, 8, 128), (27648, 152064), 32768),
    with_tied_embeddings(dense_model("qwen2.5-vl-3b", (2048, 36), (16, 2, 128), (11008, 151936), 128000)),
    dense_model("qwen2.5-vl-7b", (3584, 28), (28, 4, 128), (18944, 152064), 128000),
    dense_model("qwen2.5-vl-72b", (8192, 80), (64, 8, 128), (29568, 152064), 128000),
    dense_model("qwq-32b", (5120, 64), (40, 8, 128), (27648, 152064), 40960),
    dense_model("deepseek-r1-distill-qwen-1.5b", (1536, 28), (12, 2, 128), (8960, 151936), 131072),
    dense_model("deepseek-r1-distill-qwen-7b", (3584, 28), (28, 4, 128), (18944, 152064), 131072),
    dense_model("deepseek-r1-distill-qwen-14b", (5120, 48), (40, 8, 128), (13824, 152064), 131072),
    dense_model("deepseek-r1-distill-qwen-32b", (5120, 64), (40, 8, 128), (27648, 152064), 131072),
    with_tied_embeddings(dense_model("qwen3-0.6b", (1024, 28), (16, 8, 128), (3072, 151936), 40960)),
    with_tied_embeddings(dense_model("qwen3-1.7b", (2048, 28), (16, 8, 128), (6144, 151936), 40960)),
    with_tied_embeddings(dense_model("qwen3-4b", (2560, 36), (32, 8, 128), (9728, 151936), 40960)),
    dense_model("qwen3-8b", (4096, 36), (32, 8, 128), (12288, 151936), 40960),
    dense_model("qwen3-14b", (5120, 40), (40, 8, 128), (17408, 151936), 40960),
    dense_model("qwen3-32b", (5120, 64), (64, 8, 128), (25600, 151936), 40960),
    with_experts(dense_model("qwen3-30b-a3b", (2048, 48), (32, 4, 128), (6144, 151936), 40960), (128, 8), (768, 0), 48),
    with_experts(dense_model("qwen3-30b-a3b-instruct-2507", (2048, 48), (32, 4, 128), (6144, 151936), 262144), (128, 8), (768, 0), 48),
    with_experts(dense_model("qwen3-30b-a3b-thinking-2507", (2048, 48), (32, 4, 128), (6144, 151936), 262144), (128, 8), (768, 0), 48),
    with_experts(dense_model("qwen3-coder-30b-a3b", (2048, 48), (32, 4, 128), (6144, 151936), 262144), (128, 8), (768, 0), 48),
    with_experts(dense_model("qwen3-235b-a22b", (4096, 94), (64, 4, 128), (12288, 151936), 40960), (128, 8), (1536, 0), 94),
    with_experts(dense_model("qwen3-coder-480b-a35b", (6144, 62), (96, 8, 128), (8192, 151936), 262144), (160, 8), (2560, 0), 62),
    // Gemma
    with_tied_embeddings(dense_model("gemma-2b", (2048, 18), (8, 1, 256), (16384, 256000), 8192)),
    with_tied_embeddings(dense_model("gemma-7b", (3072, 28), (16, 16, 256), (24576, 256000), 8192)),
    with_tied_embeddings(with_sliding_window(dense_model("gemma-2-2b", (2304, 26), (8, 4, 256), (9216, 256000), 8192), 4096, 13)),
    with_tied_embeddings(with_sliding_window(dense_model("gemma-2-9b", (3584, 42), (16, 8, 256), (14336, 256000), 8192), 4096, 21)),
    with_tied_embeddings(with_sliding_window(dense_model("gemma-2-27b", (4608, 46), (32, 16, 128), (36864, 256000), 8192), 4096, 23)),
    with_tied_embeddings(with_sliding_window(dense_model("gemma-3-1b", (1152, 26), (4, 1, 256), (6912, 262144), 32768), 512, 22)),
    with_tied_embeddings(with_sliding_window(dense_model("gemma-3-4b", (2560, 34), (8, 4, 256), (10240, 262208), 131072), 1024, 29)),
    with_tied_embeddings(with_sliding_window(dense_model("gemma-3-12b", (3840, 48), (16, 8, 256), (15360, 262208), 131072), 1024, 40)),
    with_tied_embeddings(with_sliding_window(dense_model("gemma-3-27b", (5376, 62), (32, 16, 128), (21504, 262208), 131072), 1024, 52)),
    // Phi
    with_ungated_mlp(dense_model("phi-2", (2560, 32), (32, 32, 80), (10240, 51200), 2048)),
    with_sliding_window(dense_model("phi-3-mini-4k", (3072, 32), (32, 32, 96), (8192, 32064), 4096), 2047, 32),
    dense_model("phi-3-mini-128k", (3072, 32), (32, 32, 96), (8192, 32064), 131072),
    dense_model("phi-3-medium-4k", (5120, 40), (40, 10, 128), (17920, 32064), 4096),
    dense_model("phi-3-medium-128k", (5120, 40), (40, 10, 128), (17920, 32064), 131072),
    dense_model("phi-3.5-mini", (3072, 32), (32, 32, 96), (8192, 32064), 131072),
    with_experts(dense_model("phi-3.5-moe", (4096, 32), (32, 8, 128), (6400, 32064), 131072), (16, 2), (6400, 0), 32),
    dense_model("phi-4", (5120, 40), (40, 10, 128), (17920, 100352), 16384),
    with_tied_embeddings(dense_model("phi-4-mini", (3072, 32), (24, 8, 128), (8192, 200064), 131072)),
    // DeepSeek and derived models
    with_latent_attention(with_experts(dense_model("deepseek-v2-lite", (2048, 27), (16, 16, 128), (10944, 102400), 163840), (64, 6), (1408, 2816), 26), 0),
    with_latent_attention(with_experts(dense_model("deepseek-v2", (5120, 60), (128, 128, 128), (12288, 102400), 163840), (160, 6), (1536, 3072), 59), 1536),
    with_latent_attention(with_experts(dense_model("deepseek-v2.5", (5120, 60), (128, 128, 128), (12288, 102400), 163840), (160, 6), (1536, 3072), 59), 1536),
    with_quantization(with_latent_attention(with_experts(dense_model("deepseek-v3", (7168, 61), (128, 128, 128), (18432, 129280), 163840), (256, 8), (2048, 2048), 58), 1536),
        ModelQuantization::for_all_weights(QuantizationScheme::Fp8Block)),
    with_quantization(with_latent_attention(with_experts(dense_model("deepseek-v3.1", (7168, 61), (128, 128, 128), (18432, 129280), 163840), (256, 8), (2048, 2048), 58), 1536),
        ModelQuantization::for_all_weights(QuantizationScheme::Fp8Block)),
    with_quantization(with_latent_attention(with_experts(dense_model("deepseek-r1", (7168, 61), (128, 128, 128), (18432, 129280), 163840), (256, 8), (2048, 2048), 58), 1536),
        ModelQuantization::for_all_weights(QuantizationScheme::Fp8Block)),
    with_quantization(with_latent_attention(with_experts(dense_model("kimi-k2", (7168, 61), (64, 64, 128), (18432, 163840), 131072), (384, 8), (2048, 2048), 60), 1536),
        ModelQuantization::for_all_weights(QuantizationScheme::Fp8Block)),
    // With state layers
    with_state_layers(with_experts(dense_model("qwen3-next-80b-a3b", (2048, 48), (16, 2, 256), (5120, 151936), 262144), (512, 10), (512, 512), 48), QWEN3_NEXT_STATE_LAYERS),
    // 24 Mamba layers, 4 with attention, and 24 with an MLP alone.
    with_state_layers(with_ungated_mlp(dense_model("nemotron-h-8b", (4096, 28), (32, 8, 128), (21504, 131072), 8192)), NEMOTRON_H_STATE_LAYERS),
    // Others
    with_quantization(with_experts(dense_model("minimax-m2", (3072, 62), (48, 8, 128), (1536, 200064), 196608), (256, 8), (1536, 0), 62),
        ModelQuantization::for_all_weights(QuantizationScheme::Fp8Block)),
    with_quantization(with_experts(dense_model("minimax-m2.5", (3072, 62), (48, 8, 128), (1536, 200064), 196608), (256, 8), (1536, 0), 62),
        ModelQuantization::for_all_weights(QuantizationScheme::Fp8Block)),
    with_quantization(with_sliding_window(with_experts(dense_model("gpt-oss-20b", (2880, 24), (64, 8, 64), (2880, 201088), 131072), (32, 4), (2880, 0), 24), 128, 12),
        ModelQuantization::for_experts_only(QuantizationScheme::Mxfp4)),
    with_quantization(with_sliding_window(with_experts(dense_model("gpt-oss-120b", (2880, 36), (64, 8, 64), (2880, 201088), 131072), (128, 4), (2880, 0), 36), 128, 18),
        ModelQuantization::for_experts_only(QuantizationScheme::Mxfp4)),
    with_experts(dense_model("glm-4.5-air", (4096, 46), (96, 8, 128), (10944, 151552), 131072), (128, 8), (1408, 1408), 45),
    with_experts(dense_model("glm-4.5", (5120, 92), (96, 8, 128), (12288, 151552), 131072), (160, 8), (1536, 1536), 89),
    dense_model("yi-6b", (4096, 32), (32, 4, 128), (11008, 64000), 4096),
    dense_model("yi-34b", (7168, 60), (56, 8, 128), (20480, 64000), 4096),
    dense_model("granite-3.1-8b", (4096, 40), (32, 8, 128), (12800, 49155), 131072),
    with_tied_embeddings(dense_model("smollm2-135m", (576, 30), (9, 3, 64), (1536, 49152), 8192)),
    with_tied_embeddings(dense_model("smollm2-1.7b", (2048, 24), (32, 32, 64), (8192, 49152), 8192)),
    with_ungated_mlp(with_tied_embeddings(dense_model("opt-125m", (768, 12), (12, 12, 64), (3072, 50272), 2048))),
    with_ungated_mlp(with_tied_embeddings(dense_model("opt-1.3b", (2048, 24), (32, 32, 64), (8192, 50272), 2048))),
    with_ungated_mlp(with_tied_embeddings(dense_model("gpt2", (768, 12), (12, 12, 64), (3072, 50257), 1024))),
    with_ungated_mlp(dense_model("falcon-7b", (4544, 32), (71, 1, 64), (18176, 65024), 2048)),
    with_ungated_mlp(dense_model("falcon-40b", (8192, 60), (128, 8, 64), (32768, 65024), 2048)),
];

/// Context lengths, in tokens, of repositories that share the layer sizes of a built-in model but
/// have another `max_position_embeddings`. A longer name follows the names that it contains.
///
/// **Source:** the `config.json` of each repository.
const CONTEXT_LENGTHS_OF_VARIANTS: [(&str, u32); 23] = [
    // The base models of Qwen2 and Qwen2.5 allow more.
    ("qwen2-0.5b-instruct", 32_768),
    ("qwen2-1.5b-instruct", 32_768),
    ("qwen2-7b-instruct", 32_768),
    ("qwen2-72b-instruct", 32_768),
    ("qwen2-57b-a14b-instruct", 32_768),
    ("qwen2.5-1.5b-instruct", 32_768),
    ("qwen2.5-7b-instruct", 32_768),
    ("qwen2.5-14b-instruct", 32_768),
    ("qwen2.5-32b-instruct", 32_768),
    ("qwen2.5-72b-instruct", 32_768),
    ("qwen2.5-7b-instruct-1m", 1_010_000),
    ("qwen2.5-14b-instruct-1m", 1_010_000),
    ("qwq-32b-preview", 32_768),
    ("qwen3-4b-instruct-2507", 262_144),
    ("qwen3-4b-thinking-2507", 262_144),
    ("qwen3-235b-a22b-instruct-2507", 262_144),
    ("qwen3-235b-a22b-thinking-2507", 262_144),
    ("phi-4-reasoning", 32_768),
    ("kimi-k2-instruct-0905", 262_144),
    ("kimi-k2-thinking", 262_144),
    ("yi-6b-200k", 200_000),
    ("yi-34b-200k", 200_000),
    ("nemotron-h-8b-reasoning-128k", 131_072),
];
/// Names of the built-in models with LongRoPE.
const LONG_ROPE_MODELS: [&str; 5] =
    ["phi-3-mini-128k", "phi-3-medium-128k", "phi-3.5-mini", "phi-3.5-moe", "phi-4-mini"];
/// Context length of the models in [`LONG_ROPE_MODELS`] before scaling, in tokens
/// (`original_max_position_embeddings`).
const LONG_ROPE_ORIGINAL_TOKENS: u32 = 4096;

/// Returns the names of the models with built-in layer sizes.
pub fn known_model_names() -> impl Iterator<Item = &'static str> {
    KNOWN_MODELS.iter().map(|known| known.name)
}

/// Returns the layer sizes of a known repository (`meta-llama/Llama-3.1-8B-Instruct`) by its
/// longest matching name. Words such as `FP8` or `AWQ` set the quantization.
pub fn known_model_shape(repo: &str) -> Option<ModelShape> {
    let name = repository_name(repo);
    let known = find_known_model(&name)?;
    let mut shape = known.shape.clone();
    let variants = &CONTEXT_LENGTHS_OF_VARIANTS;
    if let Some((_, tokens)) = variants.iter().rfind(|(it, _)| contains_word(&name, it)) {
        shape.max_context = *tokens;
    }
    shape.qk_norm =
        ["qwen3", "gemma-3", "minimax-m2"].iter().any(|family| known.name.starts_with(family));
    if let Some(moe) = &mut shape.moe {
        moe.fp32_router = known.name.starts_with("minimax-m2");
    }
    if let Some(quantization) = ModelQuantization::guess_from_repository_name(repo) {
        shape.quantization = quantization;
        // Published FP8 checkpoints of Llama-4 quantize only the experts; NVIDIA's FP4 checkpoints
        // of DeepSeek do not quantize attention.
        shape.quantization.keep_attention = name.contains("llama-4")
            || (shape.mla.is_some() && quantization.scheme == QuantizationScheme::Fp4);
    }
    Some(shape)
}

/// Returns the context length with which vLLM serves a known repository by default, in tokens.
///
/// With LongRoPE it is the length before scaling, although the model allows more.
///
/// **Source:** vLLM 0.33 `vllm/config/model.py`, `_get_and_verify_max_len`.
pub fn default_context_tokens(repo: &str) -> Option<u32> {
    let is_long_rope = LONG_ROPE_MODELS.contains(&find_known_model(&repository_name(repo))?.name);
    match is_long_rope {
        true => Some(LONG_ROPE_ORIGINAL_TOKENS),
        false => known_model_shape(repo).map(|shape| shape.max_context),
    }
}

/// Returns the last part of a repository's name in lower case, with hyphens for underscores.
fn repository_name(repo: &str) -> String {
    let name = repo.rsplit('/').next().unwrap_or(repo).to_ascii_lowercase();
    name.replace('_', "-")
}

fn find_known_model(name: &str) -> Option<&'static KnownModel> {
    let known = KNOWN_MODELS.iter().filter(|known| contains_word(name, known.name));
    known.max_by_key(|known| known.name.len())
}

fn contains_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
        let before = text[..at].chars().next_back();
        let mut rest = text[at + word.len()..].chars();
        let after = rest.next();
        // "phi-4" is not in "phi-4.5", and "qwen2-7b" not in "qwen2-7b5".
        let decimal = after == Some('.') && rest.next().is_some_and(|c| c.is_ascii_digit());
        edge(before) && edge(after) && !decimal
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_found_by_name() {
        let layers = |repo| known_model_shape(repo).map(|shape| shape.layers);
        assert_eq!(layers("meta-llama/Llama-3.1-8B-Instruct"), Some(32));
        assert_eq!(layers("meta-llama/Meta-Llama-3.1-70B"), Some(80));
        assert_eq!(layers("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"), Some(28));
        assert_eq!(layers("codellama/CodeLlama-34b-Instruct-hf"), Some(48));
        assert_eq!(layers("microsoft/Phi-4.5"), None);
        assert_eq!(layers("somebody/else"), None);
    }

    #[test]
    fn repository_names_select_the_quantization() {
        let quantization = |repo| known_model_shape(repo).unwrap().quantization;
        let scout = quantization("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic");
        assert_eq!(
            scout,
            ModelQuantization {
                keep_attention: true,
                ..ModelQuantization::for_all_weights(QuantizationScheme::Fp8)
            }
        );
        let scheme = |repo| quantization(repo).scheme;
        assert_eq!(scheme("Qwen/Qwen2.5-7B-Instruct-AWQ"), QuantizationScheme::Int4);
        assert_eq!(scheme("nvidia/Llama-3.1-70B-Instruct-FP4"), QuantizationScheme::Fp4);
        assert_eq!(scheme("nvidia/Llama-3.3-70B-Instruct-NVFP4"), QuantizationScheme::Fp4);
        let deepseek = quantization("nvidia/DeepSeek-R1-FP4");
        assert_eq!((deepseek.scheme, deepseek.keep_attention), (QuantizationScheme::Fp4, true));
        assert_eq!(scheme("Qwen/Qwen3-32B-FP8"), QuantizationScheme::Fp8Block);
        assert_eq!(scheme("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"), QuantizationScheme::Fp8Block);
        assert_eq!(scheme("RedHatAI/Qwen3-32B-FP8-dynamic"), QuantizationScheme::Fp8);
        assert_eq!(scheme("nvidia/Qwen3-32B-FP8"), QuantizationScheme::Fp8);
    }

    #[test]
    fn repository_names_select_the_context_length() {
        let lengths = [
            ("meta-llama/Llama-3.1-8B-Instruct", Some(131_072)),
            ("meta-llama/Llama-2-7b-chat-hf", Some(4096)),
            ("Qwen/Qwen2.5-7B", Some(131_072)),
            ("Qwen/Qwen2.5-7B-Instruct-AWQ", Some(32_768)),
            ("Qwen/Qwen2.5-7B-Instruct-1M", Some(1_010_000)),
            ("Qwen/Qwen3-235B-A22B", Some(40_960)),
            ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", Some(262_144)),
            ("deepseek-ai/DeepSeek-V3", Some(163_840)),
            ("microsoft/Phi-4-mini-instruct", Some(4096)),
            ("somebody/else", None),
        ];
        assert_eq!(lengths.map(|(repo, _)| (repo, default_context_tokens(repo))), lengths);
        assert_eq!(
            known_model_shape("microsoft/Phi-4-mini-instruct").unwrap().max_context,
            131_072
        );
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = known_model_names().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KNOWN_MODELS.len());
    }
}
