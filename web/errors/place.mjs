// Pure: which node on the canvas an error belongs to, and where its card goes. Rectangles are {x, y, width, height}.

const GAP = 10

/**
 * The node that stands for an execution id like '6', or '12:5' in a subgraph, in the graph that is shown; null if none.
 */
export function nodeIn(shown, root, id) {
  let graph = root
  for (const part of String(id).split(':')) {
    const node = graph?.getNodeById(part)
    if (!node || graph === shown) return node ?? null
    graph = node.subgraph
  }
  return null
}

/** A node's rectangle in the pixels of the canvas. scale, offset: of the canvas; titleHeight: in units of the graph. */
export function rectangle(node, { scale, offset }, titleHeight) {
  const collapsed = node.flags?.collapsed
  const width = collapsed ? (node._collapsed_width ?? node.size[0]) : node.size[0]
  const height = titleHeight + (collapsed ? 0 : node.size[1])
  return {
    x: (node.pos[0] + offset[0]) * scale,
    y: (node.pos[1] - titleHeight + offset[1]) * scale,
    width: width * scale,
    height: height * scale
  }
}

/**
 * The card's upper left corner: beside the node, on the first side with room, and always whole within the view.
 *
 * closed: the size that the sides are tried with, so that unfolding the details does not send the card elsewhere.
 * node: null puts the card into the view's lower left corner. taken: rectangles along the view's right edge that would
 * cover the card; it goes to the left of them.
 */
export function place(node, card, closed, view, taken = []) {
  const corner = placeIn(node, card, closed, view)
  const covers = ({ x, y, width, height }) =>
    x < corner.x + card.width && corner.x < x + width && y < corner.y + card.height && corner.y < y + height
  const left = Math.min(...taken.filter(covers).map(({ x }) => x))
  return left < Infinity ? placeIn(node, card, closed, { ...view, width: left - view.x }) : corner
}

function placeIn(node, card, closed, view) {
  const right = view.x + view.width
  const bottom = view.y + view.height
  if (!node) return within({ x: view.x, y: bottom }, card, view)
  const sides = [
    [node.y + node.height + 2 * GAP + closed.height <= bottom, { x: node.x, y: node.y + node.height + GAP }],
    [node.x + node.width + 2 * GAP + closed.width <= right, { x: node.x + node.width + GAP, y: node.y }],
    [node.x - 2 * GAP - closed.width >= view.x, { x: node.x - GAP - card.width, y: node.y }],
    [node.y - 2 * GAP - closed.height >= view.y, { x: node.x, y: node.y - GAP - card.height }]
  ]
  const [, corner] = sides.find(([fits]) => fits) ?? sides[0]
  return within(corner, card, view)
}

function within({ x, y }, card, view) {
  const inside = (value, from, size, own) => Math.max(from + GAP, Math.min(value, from + size - own - GAP))
  return { x: inside(x, view.x, view.width, card.width), y: inside(y, view.y, view.height, card.height) }
}
