//! Expert routing: by the router, recorded during sampling, or replayed from a record (routing
//! replay, arXiv:2510.11370).
//!
//! A record has the experts of each token for all sparse layers in order, most likely first in each
//! layer.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use super::{KvCache, Model};
use r1_base::error::{self, Error, Result};

/// Use of the router's choice in a layer.
pub(super) enum Routes<'a> {
    /// The router's choice is used.
    Free,
    /// The router's choice is used and recorded: `[T, chosen]` per sparse layer.
    Recorded(&'a RefCell<Vec<Tensor>>),
    /// `[T, chosen]`: given experts; -1 uses the router's choice.
    Given(Tensor),
}

impl Routes<'_> {
    /// The experts of tokens `[T, chosen]` with their shares, from the shares of all experts `[T,
    /// experts]`; the choice is by the largest of `selection` `[T, experts]`.
    pub(super) fn choose(&self, all: &Tensor, selection: &Tensor, chosen: usize) -> Result<(Tensor, Tensor)> {
        let (_, mut ids) = selection.f_topk(chosen as i64, -1, true, true)?;
        match self {
            Self::Free => {}
            Self::Recorded(record) => record.borrow_mut().push(ids.shallow_clone()),
            Self::Given(recorded) => ids = recorded.f_where_self(&recorded.f_ge(0)?, &ids)?,
        }
        Ok((all.f_gather(-1, &ids, false)?, ids))
    }
}

impl Model {
    /// Experts per token in a record: sparse layers times experts per token. 0 for a dense model.
    pub fn routing_width(&self) -> usize {
        let sparse = (0..self.config.num_hidden_layers).filter(|&index| self.config.layer(index).sparse).count();
        self.config.experts.map_or(0, |experts| sparse * experts.chosen)
    }

    /// Refuses a record of another model.
    pub(super) fn check_routing(&self, routing: &Tensor) -> Result<()> {
        let (width, expected) = (routing.size().get(1).copied().unwrap_or(0), self.routing_width() as i64);
        if width == expected {
            return Ok(());
        }
        let message = format!("the routing record has {width} experts per token, the model chooses {expected}");
        Err(Error::new(error::Kind::Model, message).hint("the record is of another model"))
    }

    /// The recorded experts of a layer.
    pub(super) fn given_routes(&self, routing: Option<&Tensor>, index: usize) -> Result<Routes<'static>> {
        let experts = self.config.experts.filter(|_| self.config.layer(index).sparse);
        let (Some(routing), Some(experts)) = (routing, experts) else { return Ok(Routes::Free) };
        let before = (0..index).filter(|&before| self.config.layer(before).sparse).count();
        Ok(Routes::Given(routing.f_narrow(1, (before * experts.chosen) as i64, experts.chosen as i64)?))
    }
}

impl KvCache {
    /// Enables recording of the experts of tokens in steps.
    pub fn record_routing(&mut self) {
        self.routes = Some(RefCell::default());
    }

    pub(super) fn routes(&self) -> Routes<'_> {
        self.routes.as_ref().map_or(Routes::Free, Routes::Recorded)
    }

    /// Takes the record of the last step: for each token of its spans, in order, the experts of all
    /// sparse layers. Empty without recording.
    ///
    /// # Errors
    /// `Kind::Model` for an expert index above 65535.
    pub fn take_routing(&mut self) -> Result<Vec<u16>> {
        let layers = self.routes.as_mut().map(|routes| std::mem::take(routes.get_mut())).unwrap_or_default();
        if layers.is_empty() {
            return Ok(Vec::new());
        }
        let experts = Tensor::f_cat(&layers, 1)?.f_to_kind(Kind::Int64)?.f_flatten(0, 1)?;
        let number = |id: i64| u16::try_from(id).ok().filter(|id| *id != u16::MAX);
        let numbers = Vec::<i64>::try_from(experts)?.into_iter().map(number).collect::<Option<Vec<u16>>>();
        numbers.ok_or_else(|| Error::new(error::Kind::Model, "the model has more experts than a record can hold"))
    }
}
