//! Trains a small transformer on a text, byte by byte, twice: with Ferroflash's attention and with attention by candle's own operators.
//! Prints both losses.
//!
//! `cargo run --release --example training -- [steps] [text]`

use candle_core::{D, DType, Device, IndexOp, Result, Tensor};
use candle_nn::{
    AdamW, Embedding, LayerNorm, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, embedding,
    layer_norm, linear, linear_no_bias, loss, ops,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const LENGTH: usize = 64;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const BATCH: usize = 4;

/// Causal attention of Q, K and V, [batch, seqlen, heads, head_dim].
type Attention = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

fn scale(q: &Tensor) -> Result<f64> {
    Ok(1.0 / (q.dim(D::Minus1)? as f64).sqrt())
}

fn by_ferroflash(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    ferroflash_candle::flash_attn(q, k, v, scale(q)? as f32, true)
}

fn by_candle(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let heads_first = |tensor: &Tensor| tensor.transpose(1, 2)?.contiguous();
    let (q, k, v) = (heads_first(q)?, heads_first(k)?, heads_first(v)?);
    let scores = (q.matmul(&k.t()?)? * scale(&q)?)?;
    let length = scores.dim(D::Minus1)?;
    let hidden =
        (0..length * length).map(|at| if at % length > at / length { f32::NEG_INFINITY } else { 0.0 });
    let mask = Tensor::from_vec(hidden.collect(), (length, length), q.device())?;
    let weights = ops::softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
    weights.matmul(&v)?.transpose(1, 2)
}

struct Layer {
    norms: [LayerNorm; 2],
    qkv: Linear,
    out: Linear,
    wide: Linear,
    narrow: Linear,
}

impl Layer {
    fn new(weights: VarBuilder) -> Result<Layer> {
        Ok(Layer {
            norms: [
                layer_norm(WIDTH, 1e-5, weights.pp("norm_a"))?,
                layer_norm(WIDTH, 1e-5, weights.pp("norm_b"))?,
            ],
            qkv: linear_no_bias(WIDTH, 3 * WIDTH, weights.pp("qkv"))?,
            out: linear_no_bias(WIDTH, WIDTH, weights.pp("out"))?,
            wide: linear(WIDTH, 4 * WIDTH, weights.pp("wide"))?,
            narrow: linear(4 * WIDTH, WIDTH, weights.pp("narrow"))?,
        })
    }

    fn forward(&self, x: &Tensor, attention: Attention) -> Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norms[0].forward(x)?)?;
        let qkv = qkv.reshape((batch, length, 3, HEADS, WIDTH / HEADS))?;
        let o = attention(&qkv.i((.., .., 0))?, &qkv.i((.., .., 1))?, &qkv.i((.., .., 2))?)?;
        let x = (x + self.out.forward(&o.flatten_from(2)?)?)?;
        let inner = self.wide.forward(&self.norms[1].forward(&x)?)?.gelu()?;
        &x + self.narrow.forward(&inner)?
    }
}

/// Predicts each byte of a text from those before it.
struct Transformer {
    bytes: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
    head: Linear,
}

impl Transformer {
    fn new(weights: VarBuilder) -> Result<Transformer> {
        let layers = (0..LAYERS).map(|layer| Layer::new(weights.pp(format!("layer{layer}"))));
        Ok(Transformer {
            bytes: embedding(256, WIDTH, weights.pp("bytes"))?,
            positions: embedding(LENGTH, WIDTH, weights.pp("positions"))?,
            layers: layers.collect::<Result<_>>()?,
            norm: layer_norm(WIDTH, 1e-5, weights.pp("norm"))?,
            head: linear(WIDTH, 256, weights.pp("head"))?,
        })
    }

    fn forward(&self, bytes: &Tensor, attention: Attention) -> Result<Tensor> {
        let positions = Tensor::arange(0, bytes.dim(1)? as u32, bytes.device())?;
        let mut x = self.bytes.forward(bytes)?.broadcast_add(&self.positions.forward(&positions)?)?;
        for layer in &self.layers {
            x = layer.forward(&x, attention)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

/// Numbers that follow from a seed alone, as the weights' start.
fn start(weights: &VarMap) -> Result<()> {
    let mut variables: Vec<_> =
        weights.data().lock().expect("no thread panicked").clone().into_iter().collect();
    variables.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut draw = StdRng::seed_from_u64(0);
    // What has one dimension is biases, and factors of norms, which begin as 1.
    for (name, variable) in
        variables.iter().filter(|(name, variable)| variable.rank() == 2 || name.ends_with("bias"))
    {
        let spread = if name.contains("bytes") || name.contains("positions") { 1.0 } else { 0.1 };
        let numbers = (0..variable.elem_count()).map(|_| draw.random_range(-spread..spread));
        variable.set(&Tensor::from_vec(
            numbers.collect::<Vec<f32>>(),
            variable.shape(),
            variable.device(),
        )?)?;
    }
    Ok(())
}

/// The loss of each step: the same weights and the same batches, whatever the attention.
fn losses(attention: Attention, text: &[u8], steps: usize, device: &Device) -> Result<Vec<f32>> {
    let weights = VarMap::new();
    let model = Transformer::new(VarBuilder::from_varmap(&weights, DType::F32, device))?;
    start(&weights)?;
    let mut optimizer = AdamW::new(weights.all_vars(), ParamsAdamW { lr: 1e-3, ..ParamsAdamW::default() })?;
    let mut draw = StdRng::seed_from_u64(1);
    let mut found = Vec::new();
    for _ in 0..steps {
        let starts: Vec<usize> = (0..BATCH).map(|_| draw.random_range(0..text.len() - LENGTH - 1)).collect();
        let rows = |behind: usize| {
            let rows = starts.iter().flat_map(|start| &text[start + behind..][..LENGTH]);
            let rows: Vec<u32> = rows.map(|&byte| byte.into()).collect();
            Tensor::from_vec(rows, (BATCH, LENGTH), device)
        };
        let logits = model.forward(&rows(0)?, attention)?;
        let loss = loss::cross_entropy(&logits.flatten_to(1)?, &rows(1)?.flatten_all()?)?;
        optimizer.backward_step(&loss)?;
        found.push(loss.to_scalar::<f32>()?);
    }
    Ok(found)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let steps = arguments.next().map_or(40, |steps| steps.parse().expect("a number of steps"));
    let text = arguments
        .next()
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md").to_owned());
    let text = std::fs::read(&text).map_err(|error| candle_core::Error::Msg(format!("{text}: {error}")))?;
    if text.len() < LENGTH + 2 {
        candle_core::bail!("the text has {} bytes, it takes {} at least", text.len(), LENGTH + 2);
    }
    let device = Device::cuda_if_available(0)?;
    let [ours, theirs] =
        [by_ferroflash as Attention, by_candle].map(|attention| losses(attention, &text, steps, &device));
    let (ours, theirs) = (ours?, theirs?);
    println!("step  ferroflash  candle");
    for step in (0..steps).filter(|step| step % (steps / 10).max(1) == 0 || step + 1 == steps) {
        println!("{step:4}  {:10.4}  {:6.4}", ours[step], theirs[step]);
    }
    let apart = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("at most {apart:.1e} apart");
    Ok(())
}
