//! Tensors of a checkpoint, each of which holds a parameter, or a projection of all experts of a
//! layer.

use tch::Tensor;

use r1_base::error::Result;

/// A tensor of a checkpoint and the parameters in it.
#[derive(Debug)]
pub(super) struct StoredTensor {
    pub name: String,
    pub shape: Vec<i64>,
    parts: StoredParts,
}

#[derive(Debug)]
enum StoredParts {
    Whole(Tensor),
    /// For each expert, matrices `[out, in]` or biases `[out]`, which are alternating columns of
    /// `[experts, in, parts · out]` or `[experts, parts · out]`.
    Experts(Vec<Vec<Tensor>>),
}

impl StoredTensor {
    /// A tensor that holds a parameter.
    pub(super) fn whole(name: &str, tensor: &Tensor) -> Self {
        Self { name: name.to_owned(), shape: tensor.size(), parts: StoredParts::Whole(tensor.shallow_clone()) }
    }

    /// A tensor for each parameter.
    pub(super) fn all(parameters: &[(String, Tensor)]) -> Vec<Self> {
        parameters.iter().map(|(name, tensor)| Self::whole(name, tensor)).collect()
    }

    /// A tensor with a projection of all experts.
    pub(super) fn of_experts(name: String, experts: Vec<Vec<Tensor>>) -> Self {
        let parts = experts.first().map(Vec::as_slice).unwrap_or_default();
        let part = parts.first().map(Tensor::size).unwrap_or_default();
        let mut shape = vec![experts.len() as i64];
        shape.extend(part.iter().skip(1));
        shape.push(part.first().copied().unwrap_or(0) * parts.len() as i64);
        Self { name, shape, parts: StoredParts::Experts(experts) }
    }

    /// The parameters in it.
    pub(super) fn parts(&self) -> Vec<&Tensor> {
        match &self.parts {
            StoredParts::Whole(tensor) => vec![tensor],
            StoredParts::Experts(experts) => experts.iter().flatten().collect(),
        }
    }

    /// Whether it holds a matrix of each expert.
    pub(super) fn holds_matrices_of_experts(&self) -> bool {
        matches!(self.parts, StoredParts::Experts(_)) && self.shape.len() == 3
    }

    /// The parameters from the tensor of a checkpoint.
    pub(super) fn set(&self, stored: &Tensor) -> Result<()> {
        match &self.parts {
            StoredParts::Whole(tensor) => tensor.shallow_clone().f_copy_(stored)?,
            StoredParts::Experts(experts) => {
                for expert in 0..experts.len() {
                    self.set_expert(expert, &stored.f_select(0, expert as i64)?)?;
                }
            }
        }
        Ok(())
    }

    /// The parameters of an expert from its part of the tensor of a checkpoint.
    pub(super) fn set_expert(&self, expert: usize, stored: &Tensor) -> Result<()> {
        let StoredParts::Experts(experts) = &self.parts else { return Ok(()) };
        for (part, columns) in experts[expert].iter().zip(alternating(stored, experts[expert].len())?) {
            part.shallow_clone().f_copy_(&columns)?;
        }
        Ok(())
    }

    /// The tensor of a checkpoint from the parameters.
    pub(super) fn get(&self) -> Result<Tensor> {
        match &self.parts {
            StoredParts::Whole(tensor) => Ok(tensor.f_detach()?),
            StoredParts::Experts(experts) => {
                let _guard = tch::no_grad_guard();
                let stored = Tensor::f_empty(&self.shape, (self.kind(), experts[0][0].device()))?;
                for (index, parts) in experts.iter().enumerate() {
                    let columns = alternating(&stored.f_select(0, index as i64)?, parts.len())?;
                    for (part, mut columns) in parts.iter().zip(columns) {
                        columns.f_copy_(part)?;
                    }
                }
                Ok(stored)
            }
        }
    }

    /// The bytes of the tensor of a checkpoint, if a parameter has them in this order.
    pub(super) fn bytes_in_place(&self) -> Option<&[u8]> {
        let StoredParts::Whole(tensor) = &self.parts else { return None };
        bytes_of(tensor)
    }

    pub(super) fn kind(&self) -> tch::Kind {
        self.parts().first().map_or(tch::Kind::Float, |part| part.kind())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64 * self.kind().elt_size_in_bytes() as u64
    }
}

/// The bytes of a tensor that is contiguous in the memory of the host; `None` for another.
pub(super) fn bytes_of(tensor: &Tensor) -> Option<&[u8]> {
    if tensor.device() != tch::Device::Cpu || !tensor.is_contiguous() {
        return None;
    }
    let length = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if length == 0 {
        return Some(&[]);
    }
    // SAFETY: a contiguous tensor has so many bytes from its first number on, as long as it lives.
    Some(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) })
}

/// Whether all numbers are finite.
pub(super) fn is_finite(tensor: &Tensor) -> Result<bool> {
    // NaN and infinity have all bits of the exponent. libtorch's operations make a tensor of flags,
    // which takes several times as long.
    match (bytes_of(tensor), tensor.kind()) {
        (Some(bytes), tch::Kind::Float) => {
            let (numbers, _) = bytes.as_chunks::<4>();
            let is_special = |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes) & 0x7f80_0000 == 0x7f80_0000;
            Ok(!numbers.iter().fold(false, |any, bytes| any | is_special(bytes)))
        }
        (Some(bytes), tch::Kind::BFloat16) => {
            let (numbers, _) = bytes.as_chunks::<2>();
            let is_special = |bytes: &[u8; 2]| u16::from_ne_bytes(*bytes) & 0x7f80 == 0x7f80;
            Ok(!numbers.iter().fold(false, |any, bytes| any | is_special(bytes)))
        }
        _ => {
            let _guard = tch::no_grad_guard();
            Ok(tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0)
        }
    }
}

/// Views `[out, in]` or `[out]` of `count` parameters, the alternating columns of `[in, count ·
/// out]` or `[count · out]`.
fn alternating(stored: &Tensor, count: usize) -> Result<Vec<Tensor>> {
    let rows = if stored.dim() == 2 { stored.f_tr()? } else { stored.shallow_clone() };
    (0..count as i64).map(|first| Ok(rows.f_slice(0, first, None, count as i64)?)).collect()
}
