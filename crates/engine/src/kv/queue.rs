/// Holds the free KV blocks in allocation order, as a doubly linked list over block ids.
///
/// Every operation is O(1). Slot 0 is the null block, which is never free. It serves as the anchor:
/// `next` is the front, `prev` the back.
#[derive(Debug)]
pub(super) struct FreeBlockQueue {
    links: Vec<FreeBlockLink>,
    len: u32,
}

#[derive(Debug, Clone, Copy)]
struct FreeBlockLink {
    prev: u32,
    next: u32,
}

const LIST_HEAD_BLOCK: u32 = 0;

impl FreeBlockQueue {
    pub(super) fn with_all_blocks(last: u32) -> Self {
        let links = (0..=last)
            .map(|id| FreeBlockLink {
                prev: if id == LIST_HEAD_BLOCK { last } else { id - 1 },
                next: if id == last { LIST_HEAD_BLOCK } else { id + 1 },
            })
            .collect();
        Self { links, len: last }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let next = |id: u32| Some(self.links[id as usize].next).filter(|&id| id != LIST_HEAD_BLOCK);
        std::iter::successors(next(LIST_HEAD_BLOCK), move |&id| next(id))
    }

    pub(super) fn pop_front(&mut self) -> Option<u32> {
        let front = self.links[LIST_HEAD_BLOCK as usize].next;
        (front != LIST_HEAD_BLOCK).then(|| {
            self.remove(front);
            front
        })
    }

    pub(super) fn push_front(&mut self, id: u32) {
        self.insert_between(id, LIST_HEAD_BLOCK, self.links[LIST_HEAD_BLOCK as usize].next);
    }

    pub(super) fn push_back(&mut self, id: u32) {
        self.insert_between(id, self.links[LIST_HEAD_BLOCK as usize].prev, LIST_HEAD_BLOCK);
    }

    pub(super) fn remove(&mut self, id: u32) {
        let FreeBlockLink { prev, next } = self.links[id as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.len -= 1;
    }

    fn insert_between(&mut self, id: u32, prev: u32, next: u32) {
        self.links[id as usize] = FreeBlockLink { prev, next };
        self.links[prev as usize].next = id;
        self.links[next as usize].prev = id;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(mut queue: FreeBlockQueue) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop_front()).collect()
    }

    #[test]
    fn free_queue_starts_with_all_blocks_in_order() {
        assert_eq!(drain(FreeBlockQueue::with_all_blocks(4)), [1, 2, 3, 4]);
    }

    #[test]
    fn free_queue_excludes_the_null_block() {
        assert_eq!(drain(FreeBlockQueue::with_all_blocks(0)), [0; 0]);
    }

    #[test]
    fn blocks_are_removed_anywhere_and_returned_at_either_end() {
        let mut queue = FreeBlockQueue::with_all_blocks(5);
        queue.remove(3);
        queue.remove(1);
        queue.push_front(3);
        queue.push_back(1);
        assert_eq!(queue.len(), 5);
        assert_eq!(drain(queue), [3, 2, 4, 5, 1]);
    }
}
