// What KV blocks are used for: a grid for each rank, in the order of the blocks' numbers.

const CELL = 12;
const GAP = 2;

/** Cells as one path per use; the part of a cell that a use fills stands at its bottom. */
function blockGrid({ cells, blocks_per_cell: size, total_blocks: total }, width) {
  const columns = Math.max(8, Math.floor((width + GAP) / (CELL + GAP)));
  const lines = Math.ceil(cells.length / columns);
  const paths = { empty: "", cached: "", used: "", shared: "" };
  cells.forEach(([used, shared, cached], i) => {
    const [x, y] = [(i % columns) * (CELL + GAP), Math.floor(i / columns) * (CELL + GAP)];
    const all = Math.min(size, total - i * size);
    const part = (from, to) => {
      const [top, tall] = [y + CELL * (1 - to / all), CELL * (to - from) / all];
      return tall ? `M${x},${top.toFixed(2)}h${CELL}v${tall.toFixed(2)}h-${CELL}z` : "";
    };
    paths.empty += part(used + cached, all);
    paths.cached += part(used, used + cached);
    paths.used += part(shared, used);
    paths.shared += part(0, shared);
  });
  const high = lines * (CELL + GAP);
  const drawn = svg("svg", { viewBox: `0 0 ${columns * (CELL + GAP)} ${high}`, width: columns * (CELL + GAP), height: high, role: "img", "aria-label": "Blocks by use" });
  for (const [use, d] of Object.entries(paths)) drawn.append(svg("path", { class: use, d }));
  return drawn;
}

function drawCache(map) {
  const ranks = map ? map.ranks.filter((rank) => rank.total_blocks) : [];
  at("blocks").hidden = !ranks.length;
  if (!ranks.length) return;
  const width = at("maps").clientWidth || 320;
  const size = map.block_size;
  at("block-size").textContent = `of ${size} tokens`;
  at("maps").replaceChildren(...ranks.flatMap((rank) => {
    const facts = element("p", undefined, { class: "facts" });
    if (ranks.length > 1) facts.append(`rank ${rank.rank}: `);
    facts.append(
      element("b", `${whole(rank.used_blocks)} of ${whole(rank.total_blocks)} used`),
      rank.shared_blocks ? ` (${whole(rank.shared_blocks)} by several requests, which saves ${whole(rank.saved_blocks)} blocks)` : "",
      `, ${whole(rank.cached_blocks)} cached but free, ${whole(rank.unused_blocks)} empty`,
      rank.host ? `; in CPU memory ${whole(rank.host.used)} of ${whole(rank.host.total)} chunks` : "",
      rank.blocks_per_cell > 1 ? `; one cell is ${whole(rank.blocks_per_cell)} blocks` : "",
    );
    return [facts, blockGrid(rank, width)];
  }));
}
