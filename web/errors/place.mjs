// Pure: finds the node of an error and the place of its card on the canvas. Rectangles are {x, y, width, height}.

const GAP = 10

/**
 * Finds the node of an execution id, such as '6', or '12:5' in a subgraph, in the graph on the screen; null if none.
 */
export function findNode(shown, root, id) {
  let graph = root
  for (const part of String(id).split(':')) {
    const node = graph?.getNodeById(part)
    if (!node || graph === shown) return node ?? null
    graph = node.subgraph
  }
  return null
}

/**
 * Returns a node's rectangle in the canvas's pixels. scale, offset: the canvas's. titleHeight: in units of the graph.
 */
export function getRectangle(node, { scale, offset }, titleHeight) {
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
 * Returns the card's upper left corner: next to the node, on the first side with room, and always inside the view.
 *
 * foldedSize: the card's size with folded details. It decides the side, so that unfolding does not move the card to
 * another one. node: null puts the card into the view's lower left corner. covered: rectangles along the view's right
 * edge that would cover the card; the card goes to the left of them.
 */
export function placeCard(node, card, foldedSize, view, covered = []) {
  const corner = placeInView(node, card, foldedSize, view)
  const covers = ({ x, y, width, height }) =>
    x < corner.x + card.width && corner.x < x + width && y < corner.y + card.height && corner.y < y + height
  const left = Math.min(...covered.filter(covers).map(({ x }) => x))
  return left < Infinity ? placeInView(node, card, foldedSize, { ...view, width: left - view.x }) : corner
}

function placeInView(node, card, foldedSize, view) {
  const right = view.x + view.width
  const bottom = view.y + view.height
  if (!node) return moveInside({ x: view.x, y: bottom }, card, view)
  const sides = [
    [node.y + node.height + 2 * GAP + foldedSize.height <= bottom, { x: node.x, y: node.y + node.height + GAP }],
    [node.x + node.width + 2 * GAP + foldedSize.width <= right, { x: node.x + node.width + GAP, y: node.y }],
    [node.x - 2 * GAP - foldedSize.width >= view.x, { x: node.x - GAP - card.width, y: node.y }],
    [node.y - 2 * GAP - foldedSize.height >= view.y, { x: node.x, y: node.y - GAP - card.height }]
  ]
  const [, corner] = sides.find(([fits]) => fits) ?? sides[0]
  return moveInside(corner, card, view)
}

function moveInside({ x, y }, card, view) {
  const inside = (value, from, size, own) => Math.max(from + GAP, Math.min(value, from + size - own - GAP))
  return { x: inside(x, view.x, view.width, card.width), y: inside(y, view.y, view.height, card.height) }
}
