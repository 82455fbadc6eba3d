/// Holds the free KV blocks in allocation order, as a doubly linked list over block ids.
///
/// Every operation is O(1). Slot 0 is the null block, which is never free. It serves as the anchor:
/// `next` is the front, `prev` the back.
#[derive(Debug)]
pub(super) struct FreeQueue {
    links: Vec<FreeLink>,
    len: u32,
}

#[derive(Debug, Clone, Copy)]
struct FreeLink {
    prev: u32,
    next: u32,
}

const ANCHOR: u32 = 0;

impl FreeQueue {
    pub(super) fn full(last: u32) -> Self {
        let links = (0..=last)
            .map(|id| FreeLink {
                prev: if id == ANCHOR { last } else { id - 1 },
                next: if id == last { ANCHOR } else { id + 1 },
            })
            .collect();
        Self { links, len: last }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let next = |id: u32| Some(self.links[id as usize].next).filter(|&id| id != ANCHOR);
        std::iter::successors(next(ANCHOR), move |&id| next(id))
    }

    pub(super) fn pop_front(&mut self) -> Option<u32> {
        let front = self.links[ANCHOR as usize].next;
        (front != ANCHOR).then(|| {
            self.remove(front);
            front
        })
    }

    pub(super) fn push_front(&mut self, id: u32) {
        self.insert(id, ANCHOR, self.links[ANCHOR as usize].next);
    }

    pub(super) fn push_back(&mut self, id: u32) {
        self.insert(id, self.links[ANCHOR as usize].prev, ANCHOR);
    }

    pub(super) fn remove(&mut self, id: u32) {
        let FreeLink { prev, next } = self.links[id as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.len -= 1;
    }

    fn insert(&mut self, id: u32, prev: u32, next: u32) {
        self.links[id as usize] = FreeLink { prev, next };
        self.links[prev as usize].next = id;
        self.links[next as usize].prev = id;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(mut queue: FreeQueue) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop_front()).collect()
    }

    #[test]
    fn starts_with_all_blocks_in_order() {
        assert_eq!(drain(FreeQueue::full(4)), [1, 2, 3, 4]);
    }

    #[test]
    fn a_pool_of_the_null_block_alone_has_nothing_free() {
        assert_eq!(drain(FreeQueue::full(0)), [0; 0]);
    }

    #[test]
    fn blocks_are_removed_anywhere_and_returned_at_either_end() {
        let mut queue = FreeQueue::full(5);
        queue.remove(3);
        queue.remove(1);
        queue.push_front(3);
        queue.push_back(1);
        assert_eq!(queue.len(), 5);
        assert_eq!(drain(queue), [3, 2, 4, 5, 1]);
    }
}
